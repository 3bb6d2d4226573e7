"""Whom this site takes for the scheduler, what it tells it, and when it asks again what it has not got yet.

Asking again, at every beat if need be, is what makes a lost message, or a lost scheduler, harmless. What is asked for
is said by `joining.py`, `leaving.py` and the state's parts. Driven by `Participation`.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.links.network import Network
from chaos_protocols.membership.own import Membership
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.control import Heartbeat, Message


class SchedulerClient:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, network: Network, membership: Membership) -> None:
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._membership = membership
        self._hint: SiteId | None = None
        """Whom a neighbour named, whose roster was the newest."""
        self._hint_epoch = -1
        self._asked_s = float("-inf")

    @property
    def scheduler(self) -> SiteId | None:
        """Whoever leads, as far as is known here."""
        replica = self._replica
        if replica.leads:
            return replica.site
        if replica.raft.leader is not None and self._membership.in_roster:
            return replica.raft.leader
        return self._hint

    def tell(self, message: Message) -> bool:
        """To the scheduler; False when nobody is known."""
        target = self.scheduler
        if target is None:
            return False
        self._network.tell(target, message)
        return True

    def named(self, beat: Heartbeat) -> bool:
        """A neighbour says who schedules. Whether that is news."""
        if beat.scheduler is None or beat.epoch < self._hint_epoch:
            return False
        news = self._hint != beat.scheduler
        self._hint, self._hint_epoch = beat.scheduler, beat.epoch
        return news

    def forget_named(self) -> None:
        """What was named so far may be of another run: the next word counts."""
        self._hint, self._hint_epoch = None, -1

    def is_trusted(self, source: SiteId) -> bool:
        """Whether `source` may say what only sites of the run say. A site outside it must believe those it is pointed
        to; one inside, the roster and the agreement's configuration."""
        replica = self._replica
        return source == replica.site or replica.has(source) or not self._membership.in_roster

    # -- asking again

    @property
    def is_due(self) -> bool:
        """It is time to ask for what is still wanted."""
        return self._outbox.now_s >= self._asked_s + self._outbox.settings.retry_s

    def asked(self) -> None:
        """Just now."""
        self._asked_s = self._outbox.now_s

    def ask_soon(self) -> None:
        """Something has changed: at the next beat at the latest."""
        self._asked_s = float("-inf")
