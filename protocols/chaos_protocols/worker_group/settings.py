"""How a worker group is run; limits."""

from __future__ import annotations

from dataclasses import dataclass

SKIPPED_MAX = 20
"""Steps in a row whose gradient is not finite: the parameters themselves are not, or the rate is far too high."""

BROKEN_MAX = 5
"""Generations in a row that broke without a death and without a step done: something between the workers is wrong."""

LAST_HOLDER_S = 300.0
"""How much longer than others a worker may stand still before it is killed, where nobody else has the state of some of
its layers: no load starves a process for so long, and a training that hangs for good ends all the same."""

STOP_MIN_S = 30.0
"""For the pass that a worker is in when it is told to stop."""

LEAVE_MAX_S = 30.0
"""A daemon that has not let this site go by then is not waited for: when the connection ends, its site goes on with
weight 0 and leaves all the same (spec 14.2)."""

COMPLETE_MAX_S = 5.0
"""The same where no worker is left to apply what the run still decides."""

PEER_LOST_EXIT = 75
"""Of a process that ends since another one is gone: its controller, or one of its device group."""

DEVICE_VARIABLE = "CHAOS_DEVICE"
"""In the environment of each worker: its device, as torch names it, such as cuda:3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """`workers`: started at once and expected in the first plan together with `spares`. `restarts`: how many that die
    are started anew, within an hour. `skip_not_finite`: a step whose gradient is not finite counts and changes nothing;
    otherwise the training ends with it. `audit`: replicas' digests are compared after every step; `timed`: workers tell
    what they did when."""

    token: str
    workers: int
    spares: int = 0
    restarts: int = 3
    failure_timeout_s: float = 1.0
    skip_not_finite: bool = False
    audit: bool = False
    timed: bool = False

    @property
    def stop_s(self) -> float:
        """Within that a worker that was told to stop has answered: it ends the pass that it is in before."""
        return max(STOP_MIN_S, self.failure_timeout_s)
