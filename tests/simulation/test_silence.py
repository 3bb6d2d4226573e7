"""What the oracle of invariant 8 takes for a link that is called up for too long."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulator.oracles_recovery import SLACK_S, RecoveryOracle
from tests.simulator.oracles_standing import STAND_S
from tests.simulator.violation import Violation

from chaos_protocols.links.liveness import LinkPhase

BEAT_S = 0.25


def fail(invariant: int, text: str) -> None:
    raise Violation(invariant, text, "here", [])


@pytest.mark.parametrize("stood_s", [0.0, SLACK_S])
def test_the_time_in_which_a_site_stood_still_for_a_moment_is_nobodys_silence(stood_s: float) -> None:
    """Seed 2100038, 4 sites: it was stopped for half a second, which its machine forgives its neighbours."""
    world: Any = SimpleNamespace(now_s=0.0, settings=SimpleNamespace(beat_s=BEAT_S))

    oracle: Any = RecoveryOracle(fail, world)  # type: ignore[arg-type]
    neighbour = SimpleNamespace(phase=LinkPhase.UP, watch=SimpleNamespace(received_s=-9.0))
    links = SimpleNamespace(neighbours={"02b": neighbour}, silence_limit_s=lambda _: 1.0)
    node: Any = SimpleNamespace(site="01a", name="a", machine=SimpleNamespace(links=links))
    oracle.delivered(node, "02b")

    def passes(until_s: float) -> None:
        while world.now_s < until_s:
            world.now_s += BEAT_S / 2
            oracle.after_step(node, timer=True)

    passes(0.5)
    world.now_s += stood_s
    passes(1.0 + BEAT_S + SLACK_S - 0.1 + stood_s)
    with pytest.raises(Violation, match="still calls its link to 02b up"):
        passes(world.now_s + 3 * BEAT_S)


@pytest.mark.parametrize("says_after_s", [0.0, STAND_S / 2, STAND_S * 2])
def test_who_waits_for_a_state_that_is_lost_has_some_time_to_say_so(says_after_s: float) -> None:
    """Seed 9304989, 5 sites: its daemon had taken its new key, and begun anew, a second before the judge looked."""
    world: Any = SimpleNamespace(now_s=0.0, settings=SimpleNamespace(beat_s=BEAT_S))
    pause = SimpleNamespace(reason=lambda: "it is lost" if world.now_s >= says_after_s else "")
    machine = SimpleNamespace(
        incarnation=1, rounds=SimpleNamespace(active=False), participation=SimpleNamespace(pause=pause)
    )
    world.nodes = {"01a": SimpleNamespace(site="01a", name="a", worker=object(), machine=machine)}
    world.oracles = SimpleNamespace(newest=SimpleNamespace(record=lambda _: SimpleNamespace(incarnation=1)))

    def run_until(reached: Callable[[], bool], limit_s: float) -> None:
        while not reached() and world.now_s < limit_s:
            world.now_s += BEAT_S

    world.run_until = run_until
    oracle = RecoveryOracle(fail, world)  # type: ignore[arg-type]
    if says_after_s < STAND_S:
        oracle.waits_as_it_must()
    else:
        with pytest.raises(Violation, match="a waits for a state that is lost, and does not say so"):
            oracle.waits_as_it_must()
