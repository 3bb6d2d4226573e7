"""States change as the table of their machine says."""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import Enum
from typing import TypeVar

from chaos_protocols.errors import LocalProtocolError

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def checked_change(table: Container[tuple[State, State]], old: State, new: State, what: str) -> State:
    """`new`, where the table has the change from `old`, or there is none. Raises LocalProtocolError otherwise; `what`
    says whose change it is."""
    if new is not old and (old, new) not in table:
        raise LocalProtocolError(f"{what}: from {old.name.lower()} to {new.name.lower()}")
    return new


def next_state(table: Mapping[tuple[State, Event], State], state: State, event: Event, who: str) -> State:
    """The state after `event`, as the table has it. Raises LocalProtocolError where it has none; `who` says whose it
    is."""
    after = table.get((state, event))
    if after is None:
        raise LocalProtocolError(f"{who} that is {state.value} cannot be told: {event.value} ({event.name})")
    return after
