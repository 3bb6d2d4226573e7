"""What the daemon of a site of several workers says of its run, for people. Owned by the member."""

from __future__ import annotations

from chaos_protocols.wire import worker as wire
from chaos_protocols.wire.user_words import RunPaused, RunResumed, RunWarned, StateDiffered
from chaos_protocols.worker_group.port import Group


class RunWords:
    """`paused`: why the run waits."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.paused = ""

    def take(self, message: wire.DaemonMessage) -> None:
        """Noted in the history, each once."""
        match message:
            case wire.WorkerWelcome(site=site, run=run):
                self._group.note("run-joined", f"connected to {site}, run {run}")
            case RunPaused(reason=reason):
                if reason != self.paused:
                    self._group.note("run-waits", reason)
                self.paused = reason
            case RunResumed():
                self.paused = ""
            case StateDiffered(reason=reason):
                self._group.note("state-differed", reason)
            case RunWarned(reason=reason):
                self._group.note("run-warned", reason)
