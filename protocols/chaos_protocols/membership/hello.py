"""Whether a worker that says hello is taken. Decides alone: who is refused changes nothing (spec 12.12)."""

from __future__ import annotations

from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.causes import Cause
from chaos_protocols.events import WorkerReady


def why_not(event: WorkerReady, model: ModelFacts | None, *, trains_already: bool) -> str:
    """Why this worker is not taken, and what to do; empty: it is. `model`: the run's; None: it has none yet."""
    if model is not None and event.model != model:
        standby = "" if trains_already else "; until then this site relays in standby"
        other = Cause.OTHER_MODEL.told().text
        return f"{other}; start the script again with the run's own model and optimizer{standby}"
    if event.rival_pid is not None and trains_already:
        return (
            f"another worker (process {event.rival_pid}) already trains through this daemon; stop it first, or "
            "start a second daemon with its own data directory"
        )
    return ""
