"""Whether a worker that says hello is taken. Decides alone: who is refused changes nothing (spec 12.12)."""

from __future__ import annotations

from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.causes import Cause
from chaos_protocols.events import WorkerReady
from chaos_protocols.wire.bounds import Bounds


def why_not(event: WorkerReady, model: ModelFacts | None, bounds: Bounds, *, trains_already: bool) -> str:
    """Why this worker is not taken, and what to do; empty: it is. `model`: the run's; None: it has none yet. `bounds`:
    the run's; which results they concern must be the same for all."""
    if model is not None and event.model != model:
        standby = "" if trains_already else "; until then this site relays in standby"
        other = Cause.OTHER_MODEL.told().text
        return f"{other}; start the script again with the run's own model and optimizer{standby}"
    if bounds.is_beyond(event.version):
        limit = f"norm_max = {bounds.norm_max:g}" if bounds.norm_max else f"clip_radius = {bounds.clip_radius:g}"
        return (
            f"this run bounds what a site gives ({limit}), and the script's chaos package is of "
            "a release that does not say which of its numbers are gradients: install the release of the daemon"
        )
    if event.rival_pid is not None and trains_already:
        return (
            f"another worker (process {event.rival_pid}) already trains through this daemon; stop it first, or "
            "start a second daemon with its own data directory"
        )
    return ""
