"""The page of the observed states is what the simulator shows, and shows every state that the code has."""

from __future__ import annotations

from tests.tidy.observed import PAGE, PHASES, STANDINGS, page

from chaos_protocols.liveness import LinkPhase
from chaos_protocols.raft import Role
from chaos_protocols.transfer import SourceState


def test_the_page_of_observed_states_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.tidy.observed`"


def test_every_state_is_reached_and_left_again_by_some_seed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    final = {"removed", "excluded"}
    names = [role.value for role in Role] + [phase.value for phase in LinkPhase] + [*STANDINGS, *PHASES]
    healed_before = {SourceState.STALLED}  # the random world of the transfers mends a link in half that time
    names += [state.name.lower() for state in SourceState if state not in healed_before]
    for name in names:
        assert f"    {name} --> " in text or name in final, f"{name} is never left"
        assert f" --> {name}\n" in text or name in ("starting", "waiting"), f"{name} is never reached"
