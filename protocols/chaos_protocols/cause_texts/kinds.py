"""What a cause is made of: where it shows, and what is said of it. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Place(Enum):
    """Who is told, and where it shows."""

    WAITS = "This site waits"
    """In `paused` of its status, at its script, as the event `pause`."""
    LINK = "A link does not come about"
    """In the log of the site that dials; where it has no link at all, as what it waits for."""
    REFUSES = "This site refuses another one"
    """In `refused` of the status, as the event `refused`, at most once in a while for each site."""
    WARNS = "This site goes on, and warns"
    """At the script (`chaos: warning: ...`), as an event."""
    ENDS = "This daemon ends"
    """In the log, at the script, as the last event; the exit code is 4."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is said of a cause. `text`: one sentence, with what is filled in where it is found in braces. `waits_for`:
    who can change it. `remedy`: what to do."""

    code: str
    place: Place
    text: str
    waits_for: str
    remedy: str
