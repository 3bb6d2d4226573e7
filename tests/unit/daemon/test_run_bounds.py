"""What operators see of the run's bounds and do to them, by command (spec 19.8)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.daemon.api.local_api import FakeControl, served
from tests.unit.protocols.one_site import A, B, Bench, C, D, roster_of
from typer.testing import CliRunner

from chaos_protocols.events import Event
from chaos_protocols.wire.bounds import BOUNDS_SINCE, UNBOUNDED, Bounds
from chaos_protocols.wire.versions import Versions
from chaosd.cli.app import app
from chaosd.run_bounds import BoundsBody, BoundsWishes

HELD = Bounds(norm_max=4.0, weight_max=100.0)


class Driver:
    """A machine, the door for its events, and which script is attached."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.machine = bench, bench.machine
        self.workers: Any = SimpleNamespace(session=None)

    def feed(self, event: Event) -> None:
        self.bench.handle(event)


def driver_of(*members: Any, bounds: Bounds = HELD, **more: Any) -> Driver:
    bench = Bench(A, roster_of(*members, bounds=bounds, **more))
    return Driver(bench)


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def commands() -> Iterator[tuple[Driver, Command]]:
    driver = driver_of(A, B, C)
    with tempfile.TemporaryDirectory(prefix="chaos") as name:  # a socket's path is short
        with served(Path(name) / "api.sock", FakeControl(), further=BoundsWishes(driver).local_routes()):

            def run(*words: str) -> tuple[int, str]:
                done = CliRunner().invoke(app, [*words, "--data-dir", name], catch_exceptions=False)
                return done.exit_code, done.output

            yield driver, run


def wanted(driver: Driver) -> Bounds | None:
    return driver.machine.participation.client.bounds_wanted


def test_the_commands_show_what_holds_and_what_is_wanted(commands: tuple[Driver, Command]) -> None:
    driver, run = commands
    assert run("bounds") == (0, "a site gives: norm_max = 4, weight_max = 100\n")
    code, text = run("bounds", "set", "norm_max=2.5", "clip_radius=0.5")
    assert code == 0 and "operators of 2 of the 3 members" in text
    assert wanted(driver) == Bounds(norm_max=2.5, weight_max=100.0, clip_radius=0.5), "what is not named stays"
    code, text = run("bounds")
    assert "wanted here: norm_max = 2.5, weight_max = 100, clip_radius = 0.5; it needs 2 of 3" in text
    assert '"norm_max":2.5' in run("bounds", "--json")[1]
    assert run("bounds", "set", "weight_max=off")[0] == 0
    assert wanted(driver) == Bounds(norm_max=2.5, clip_radius=0.5), "added to what was wanted"
    assert run("bounds", "withdraw")[0] == 0 and wanted(driver) is None


def test_what_makes_no_sense_is_refused_with_what_would(commands: tuple[Driver, Command]) -> None:
    driver, run = commands
    for words in (("norm=3",), ("norm_max",), ("norm_max=-1",), ("norm_max=nan",), ("norm_max=1e400",)):
        code, text = run("bounds", "set", *words)
        assert code == 2 and "NAME one of norm_max, weight_max, clip_radius" in text
    code, text = run("bounds", "set", "norm_max=1e-9")
    assert code == 1 and "allowed: 0 (off), or 1e-06" in text
    assert wanted(driver) is None
    done = CliRunner().invoke(app, ["bounds", "--json", "set", "norm_max=1"])
    assert done.exit_code == 2 and "options belong after `set`" in done.output


def test_bounds_that_are_agreed_for_a_coming_round_are_shown_as_such() -> None:
    driver = driver_of(A, B, bounds=UNBOUNDED, bounds_before=HELD, bounds_from=9)
    told = BoundsWishes(driver).tell()
    assert (told.holds, told.agreed, told.from_round, told.members) == (HELD, UNBOUNDED, 9, 2)
    driver.machine.rounds.completed_round = 8
    told = BoundsWishes(driver).tell()
    assert (told.holds, told.agreed, told.from_round) == (UNBOUNDED, None, 0)


def test_to_want_what_the_run_has_takes_another_wish_back() -> None:
    driver = driver_of(A, B, C)
    wishes = BoundsWishes(driver)
    wishes.want(BoundsBody(norm_max=1.0))
    done = wishes.want(BoundsBody(norm_max=HELD.norm_max))
    assert done.done and "has them already" in done.reason and wanted(driver) is None


def test_a_site_that_is_no_member_has_no_say() -> None:
    bench = Bench(A, roster_of(B, C, learners=(A,)))
    done = BoundsWishes(Driver(bench)).want(BoundsBody(norm_max=1.0))
    assert not done.done and "no member" in done.reason
    assert not BoundsWishes(Driver(Bench(D))).want(BoundsBody(norm_max=1.0)).done


@pytest.mark.parametrize(("newest", "taken"), [(BOUNDS_SINCE - 1, False), (BOUNDS_SINCE, True)])
def test_a_site_whose_script_does_not_say_what_is_bounded_wants_no_norm(newest: int, taken: bool) -> None:
    driver = driver_of(A, B, C, bounds=UNBOUNDED)
    hello = SimpleNamespace(versions=Versions(oldest=2, newest=newest))
    driver.workers.session = SimpleNamespace(hello=hello)
    assert BoundsWishes(driver).want(BoundsBody(norm_max=1.0)).done == taken
    assert BoundsWishes(driver).want(BoundsBody(norm_max=0.0, weight_max=5.0)).done


def test_a_request_with_another_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"norm": 1}', type=BoundsBody)
