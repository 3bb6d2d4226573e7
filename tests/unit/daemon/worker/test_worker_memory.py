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
from chaosd.worker.memory import available_bytes, memory_problem
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


def group(folder: Path, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\nactive_file 1\n")


def test_the_limits_of_the_control_groups_around_it_bound_what_is_free(tmp_path: Path) -> None:
    """Of the own group and those around it the tightest counts; cached files are given back on demand."""
    root, own = tmp_path / "groups", tmp_path / "cgroup"
    own.write_text("0::/machine/chaosd.service\n")
    group(root / "machine" / "chaosd.service", "max", 50, 10)
    free = available_bytes(root, own)
    assert free > 1_000_000, "no limit: the machine's"
    group(root / "machine", "1000", 700, 99)
    assert available_bytes(root, own) == 1000 - 700 + 100
    group(root / "machine" / "chaosd.service", "500", 499, 9)
    assert available_bytes(root, own) == 11
    group(root / "machine" / "chaosd.service", "500", 900, 9)
    assert available_bytes(root, own) == 0
    own.write_text("0::/\n")
    group(root, "300", 100, 9)
    assert available_bytes(root, own) == 210, "a container that sees its own group as the root"


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    assert available_bytes(tmp_path, own) > 1_000_000
    own.write_text("4:memory:/docker/abc\n")
    assert available_bytes(tmp_path, own) > 1_000_000
    own.write_text("0::/gone\n")
    assert available_bytes(tmp_path, own) > 1_000_000
