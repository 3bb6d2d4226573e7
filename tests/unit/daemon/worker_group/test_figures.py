"""Figures of the script go to the daemon in time, not one by one, and the newest of each name are kept."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from chaos_protocols.wire.worker import FIGURES_MAX, FiguresLogged, WorkerHello
from chaosd.worker_group import figures as module
from chaosd.worker_group.figures import LoggedFigures
from chaosd.worker_group.run_line import RunLine


def logged(round: int, **values: float | None) -> FiguresLogged:
    return FiguresLogged(round=round, figures=dict(values))


async def test_the_first_is_handed_on_at_once_and_the_newest_of_the_others_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HANDED_ON_EVERY_S", 0.0)
    told, again = list[FiguresLogged](), asyncio.Event()

    def hand_on(figures: FiguresLogged) -> bool:
        told.append(figures)
        if len(told) == 2:
            again.set()
        return True

    site = LoggedFigures(hand_on)
    for round, loss in ((1, 3.0), (2, 2.0), (3, None)):
        site.take(logged(round, loss=loss))
    site.take(logged(3, norm=0.5))
    assert told == [logged(1, loss=3.0)]
    async with asyncio.timeout(30):
        await again.wait()
    assert told[1:] == [logged(3, loss=None, norm=0.5)]
    assert site.newest == {"loss": (3, None), "norm": (3, 0.5)}
    site.close()


async def test_what_cannot_be_handed_on_waits_and_what_is_too_much_goes() -> None:
    there, told = False, list[FiguresLogged]()

    def hand_on(figures: FiguresLogged) -> bool:
        told.extend([figures] if there else [])
        return there

    site = LoggedFigures(hand_on)
    for number in range(FIGURES_MAX + 3):
        site.take(FiguresLogged(round=number, figures={f"layer.{number}": 1.0}))
    assert len(site.newest) == FIGURES_MAX and "layer.2" not in site.newest
    there = True
    site.close()
    (one,) = told
    assert set(one.figures) == set(site.newest) and one.round == FIGURES_MAX + 2


async def test_nothing_goes_to_a_daemon_before_the_hello_or_where_there_is_none(tmp_path: Path) -> None:
    nowhere = RunLine(None, lambda event: None)
    assert not nowhere.hand_on(logged(1, loss=1.0))
    found = asyncio.Event()
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "worker.sock"))
        daemon.listen()
        line = RunLine(tmp_path / "worker.sock", lambda event: found.set())
        line.join()
        async with asyncio.timeout(30):
            await found.wait()
        assert not line.hand_on(logged(1, loss=1.0)), "the daemon has not been greeted"
        peer, _ = daemon.accept()
        with peer, socket.socket() as shared:
            hello = WorkerHello(
                version=1, oldest=1, pid=1, round=0, damaged_round=None, state=(), contribution=(), arena_bytes=0
            )  # type: ignore[arg-type]
            line.greet(hello, shared.fileno())
            assert line.hand_on(logged(1, loss=1.0))
            while line.hand_on(logged(2, **{f"x{n}": 1.0 for n in range(30)})):
                pass  # a daemon that does not read any more blocks nobody
            line.close()
            assert not line.hand_on(logged(3, loss=1.0))
